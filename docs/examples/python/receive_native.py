import asyncio

import quorate


async def main() -> None:
    async with quorate.connect() as client:
        await client.declare("hello")
        print("waiting for messages", flush=True)
        async for delivery in client.consume("hello"):
            print("received:", delivery.body.decode(), flush=True)
            await delivery.settle()


asyncio.run(main())
