"""Questions over local files, judged by GAIA's rule."""

from offline_agent_environments.files_qa.env import FilesQA

__all__ = ["FilesQA"]
