import asyncio

import quorate


async def handler(delivery: quorate.Delivery) -> None:
    order = delivery.body.decode()
    if order == "nonsense":
        raise quorate.Reject("this will never work")  # dead-lettered at once
    if delivery.delivery_count == 0:
        print("failed:", order, flush=True)
        raise ConnectionError("the bank does not answer")  # comes again later
    print("paid:", order, flush=True)


async def main() -> None:
    async with quorate.connect() as client:
        await client.declare("invoices.dead")
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "invoices.dead"}
        await client.declare("invoices", dead)
        await client.publish_many("invoices", [b"order 17", b"nonsense"])
        print("working", flush=True)
        await client.work("invoices", handler, attempts=5, retry_ms=200)


asyncio.run(main())
