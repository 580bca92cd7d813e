"""Tools of environments: their schemas by reflection, the validation of calls, and `ToolSet`, the tools of one."""

from offline_agent.envs.tools.toolset import ToolSet

__all__ = ["ToolSet"]
