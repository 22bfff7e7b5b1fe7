"""
mlflow: the log of a run in MLflow, and the model as its artifact. ``mlflow ui --backend-store-uri URI`` shows it.

Needs ``pip install mlflow==3.17.2``.
"""

import tempfile

import mlflow
from stable_baselines3.common.logger import KVWriter, configure

from sb3_ppg import PPG


class MLflowWriter(KVWriter):
    """Gets each row of the log."""

    def write(self, key_values: dict, key_excluded: dict, step: int = 0) -> None:
        mlflow.log_metrics({key: value for key, value in key_values.items() if not isinstance(value, str)}, step)

    def close(self) -> None:
        pass


model = PPG("MlpPolicy", "CartPole-v1", n_steps=256, n_policy_iterations=2, seed=0)
logger = configure(None, ["stdout"])  # SB3's log as before
logger.output_formats.append(MLflowWriter())
model.set_logger(logger)

with tempfile.TemporaryDirectory() as folder:
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")  # or the URL of a server
    mlflow.create_experiment("ppg", f"file://{folder}/artifacts")
    with mlflow.start_run(experiment_id=mlflow.get_experiment_by_name("ppg").experiment_id) as run:
        mlflow.log_params({"n_steps": model.n_steps, "gamma": model.gamma})
        model.learn(2048)
        model.save(f"{folder}/model.zip")
        mlflow.log_artifact(f"{folder}/model.zip")
    client = mlflow.MlflowClient()
    points = client.get_metric_history(run.info.run_id, "aux/kl")
    (artifact,) = client.list_artifacts(run.info.run_id)
assert len(points) == model.n_aux_phases == 4 and artifact.path == "model.zip"
print(f"{len(points)} points of aux/kl, {artifact.path}")
