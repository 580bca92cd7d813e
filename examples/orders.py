"""A help desk over a small database: everything optional that an environment can offer.

The state is an SQLite database in memory (in autocommit, or an open transaction would block its backup), which
`copy.deepcopy` cannot copy: `__deepcopy__` says how. The verifier
compares the whole end state with the one that the task asks for, and says where they differ.

python -m offline_agent.pipelines.build_prefs env=examples.orders:Orders policy=noisy
"""

import hashlib
import random
import sqlite3

from offline_agent.records import Verdict

CUSTOMERS = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn")
ITEMS = ("lamp", "chair", "kettle", "clock", "mirror", "basket")


class Orders:
    version = "1"
    system_prompt = "You run a help desk. Change exactly what is asked for and nothing else, then say that it is done."

    def __init__(self):
        self._db = None
        self.terminated = False

    @classmethod
    def tasks(cls, split):
        for i in range({"train": 60, "validation": 20, "test": 20}[split]):
            rng = random.Random(f"{split} {i}")
            seed = rng.randrange(10**6)
            order = rng.choice([row for row in _rows(seed) if row[3] == "open"])
            yield {"task_id": f"{split}-{i}", "seed": seed, "order": order[0], "action": rng.choice(("cancel", "ship"))}

    def reset(self, seed: int, order: int, action: str) -> str:
        self._goal = [
            (*r[:3], {"cancel": "cancelled", "ship": "shipped"}[action]) if r[0] == order else r for r in _rows(seed)
        ]
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._db.execute("create table orders (id integer primary key, customer text, item text, status text)")
        self._db.executemany("insert into orders values (?, ?, ?, ?)", _rows(seed))
        self.terminated = False
        _, customer, item, _ = next(row for row in _rows(seed) if row[0] == order)
        return f"Please {action} {customer}'s open order of a {item}."

    def find_orders(self, customer: str) -> list[dict]:
        """List a customer's orders.

        Args:
            customer: The customer's first name.

        Returns:
            One entry per order: id, item and status.
        """
        rows = self._db.execute("select id, item, status from orders where customer = ?", (customer,)).fetchall()
        if not rows:
            raise LookupError(f"there is no customer {customer!r}; customers: {', '.join(CUSTOMERS)}")
        return [dict(zip(("id", "item", "status"), row, strict=True)) for row in rows]

    def set_status(self, order_id: int, status: str) -> str:
        """Change the status of an open order.

        Args:
            order_id: The order's id.
            status: The new status (choices: ["cancelled", "shipped"])
        """
        cursor = self._db.execute("update orders set status = ? where id = ? and status = 'open'", (status, order_id))
        if not cursor.rowcount:
            raise ValueError(f"there is no open order {order_id}")
        return f"Order {order_id} is {status}."

    def get_reward(self) -> Verdict:
        wrong = [row for row, goal in zip(self._all(), self._goal, strict=True) if row != goal]
        return Verdict(float(not wrong), not wrong, "orders.state", self.version, {"wrong": wrong})

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(repr(self._all()).encode()).hexdigest()

    def __deepcopy__(self, memo):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._db.backup(twin._db)
        return twin

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._db is not None:
            self._db.close()

    @classmethod
    def demonstrate(cls, task, messages, rng, noise):
        _, customer, item, _ = next(row for row in _rows(task["seed"]) if row[0] == task["order"])
        calls = sum(bool(message.get("tool_calls")) for message in messages)
        careless = rng.random() < noise
        if calls == 0 and not careless:
            return _call("find_orders", customer=customer)
        if calls <= 1 and (calls == 1 or careless):
            order = rng.choice(_rows(task["seed"]))[0] if careless else task["order"]
            return _call(
                "set_status", order_id=order, status={"cancel": "cancelled", "ship": "shipped"}[task["action"]]
            )
        return {"role": "assistant", "content": f"The order of a {item} is dealt with."}

    def _all(self):
        return self._db.execute("select id, customer, item, status from orders order by id").fetchall()


def _rows(seed):
    rng = random.Random(seed)
    pairs = rng.sample([(c, i) for c in CUSTOMERS for i in ITEMS], 12)
    return [(100 + n, c, i, "open" if n % 3 else "shipped") for n, (c, i) in enumerate(pairs)]


def _call(name, **arguments):
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
