"""What training collects and draws its minibatches from."""
