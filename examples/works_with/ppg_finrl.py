"""
finrl: PPG as one of the models of its class ``DRLAgent``, on prices that are drawn here.

Needs ``pip install --no-deps finrl==0.3.7`` and ``pip install stockstats exchange-calendars alpaca-trade-api yfinance wrds``.
"""

import numpy as np
import pandas as pd
from finrl.agents.stablebaselines3 import models
from finrl.meta.env_stock_trading.env_stocktrading import StockTradingEnv

from sb3_ppg import PPG

models.MODELS["ppg"] = PPG
N_DAYS, STOCKS = 250, ("A", "B")

rng = np.random.default_rng(0)
prices = 100 * np.exp(rng.normal(0.001, 0.01, (N_DAYS, len(STOCKS))).cumsum(axis=0))
days = pd.date_range("2024-01-01", periods=N_DAYS).strftime("%Y-%m-%d")
rows = [(n, day, stock, prices[n, i], rng.normal()) for n, day in enumerate(days) for i, stock in enumerate(STOCKS)]
data = pd.DataFrame(rows, columns=["index", "date", "tic", "close", "noise"]).set_index("index")

n = len(STOCKS)
costs = dict(buy_cost_pct=[0.001] * n, sell_cost_pct=[0.001] * n, hmax=100, initial_amount=100_000, num_stock_shares=[0] * n)
sizes = dict(stock_dim=n, state_space=1 + 2 * n + n, action_space=n, tech_indicator_list=["noise"], reward_scaling=1e-4)
env = StockTradingEnv(data, **sizes, **costs)
agent = models.DRLAgent(env.get_sb_env()[0])
model = agent.get_model("ppg", model_kwargs=dict(n_steps=256, n_policy_iterations=2), seed=0, verbose=0)
model = agent.train_model(model, "ppg", total_timesteps=2048)
account, actions = agent.DRL_prediction(model, StockTradingEnv(data, **sizes, **costs))
assert model.n_aux_phases == 4 and len(account) == len(days)
print(f"4 phases; an account of {account['account_value'].iloc[0]:,.0f} becomes {account['account_value'].iloc[-1]:,.0f}")
