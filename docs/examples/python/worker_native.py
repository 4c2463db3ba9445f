import asyncio

import quorate


async def handler(delivery: quorate.Delivery) -> None:
    await asyncio.sleep(0.2)  # the work
    print("done:", delivery.body.decode(), flush=True)


async def main() -> None:
    async with quorate.connect() as client:
        await client.declare("tasks")
        print("ready", flush=True)
        await client.work("tasks", handler, concurrency=1)  # settles what the handler has done


asyncio.run(main())
