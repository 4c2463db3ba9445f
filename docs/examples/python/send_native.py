import asyncio

import quorate


async def main() -> None:
    async with quorate.connect() as client:
        await client.declare("hello")
        await client.publish("hello", b"Hello, Quorate!")  # waits for the confirm
        print("sent and confirmed")


asyncio.run(main())
