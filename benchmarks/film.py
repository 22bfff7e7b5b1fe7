"""
The film strip of a trained agent: an episode of ``pretrained/ppg/LunarLander-v3``.

    python -m benchmarks.film    # writes results/film.png
"""

import gymnasium as gym
import numpy as np
from PIL import Image

from benchmarks.harness import RESULTS
from benchmarks.pretrained import FOLDER
from sb3_ppg import hub

ENV_ID, SEED = "LunarLander-v3", 3
N_FRAMES, WIDTH, HEIGHT, GAP = 8, 200, 206, 4  # pixels
CUT = (140, 0, 460, 330)  # left, top, right, bottom of what a frame shows


def play() -> tuple[list[np.ndarray], float]:
    """Return the pictures of an episode, and its return."""
    env = gym.make(ENV_ID, render_mode="rgb_array")
    model = hub.from_pretrained(FOLDER / "ppg" / ENV_ID, device="cpu")
    observation, _ = env.reset(seed=SEED)
    frames, total, done = [np.asarray(env.render())], 0.0, False
    while not done:
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        frames.append(np.asarray(env.render()))
        total, done = total + float(reward), terminated or truncated
    env.close()
    return frames, total


if __name__ == "__main__":
    frames, total = play()
    strip = Image.new("RGB", (N_FRAMES * (WIDTH + GAP) - GAP, HEIGHT), "white")
    shown = np.linspace(0, len(frames) - 1, N_FRAMES).round().astype(int)
    for place, number in enumerate(shown):
        frame = Image.fromarray(frames[number]).crop(CUT).resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
        strip.paste(frame, (place * (WIDTH + GAP), 0))
    strip.quantize(64).save(RESULTS / "film.png", optimize=True)
    print(f"Steps {', '.join(map(str, shown))} of an episode; return {total:.0f}")
