import asyncio

import quorate


async def main() -> None:
    async with quorate.connect() as client:
        await client.declare("tasks")
        await client.publish_many("tasks", [f"task {number}".encode() for number in range(1, 11)])
        print("10 tasks are stored")


asyncio.run(main())
