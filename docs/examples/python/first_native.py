import asyncio

import quorate


async def main() -> None:
    async with quorate.connect() as client:  # finds the nodes that `make up` started
        await client.declare("greetings")
        await client.publish("greetings", b"hello from Python")
        async for delivery in client.consume("greetings"):
            print(delivery.body.decode())
            await delivery.settle()
            break


asyncio.run(main())
