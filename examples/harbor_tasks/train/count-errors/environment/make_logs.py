import random

rng = random.Random(11)
for day in range(1, 4):
    with open(f"logs/2024-03-0{day}.log", "w") as file:
        for minute in range(200):
            service = rng.choice(("auth", "billing", "mailer"))
            level = rng.choice(("INFO", "INFO", "INFO", "WARN", "ERROR"))
            said = "queue is full" if service == "mailer" else f"answered in {rng.randrange(5, 900)} ms"
            if rng.random() < 0.1:
                said = f"ERROR was reported by a client, {said}"
            print(f"2024-03-0{day} {minute // 60:02}:{minute % 60:02} {level} {service} {said}", file=file)
