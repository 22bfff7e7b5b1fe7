"""Buffers that training fills with rollouts and draws its minibatches from."""
