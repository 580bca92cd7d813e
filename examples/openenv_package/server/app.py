"""The server: any environment of offline_agent, by the name that env= takes."""

import argparse

import uvicorn

from offline_agent.envs.serving.openenv_server import app as served

app = served("countdown", n=200)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    uvicorn.run(app, host=given.host, port=given.port)


if __name__ == "__main__":
    main()
