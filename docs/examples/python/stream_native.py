import asyncio

import quorate


async def main() -> None:
    async with quorate.connect() as client:
        await client.declare("readings", {"subjects": ["sensor.*"]}, type="stream")
        for number, room in enumerate(("kitchen", "cellar", "kitchen"), start=1):
            await client.publish(
                "readings", f"{number + 18} degrees".encode(), key=f"sensor.{room}"
            )

        # From the first message on; the program keeps its place.
        async for message in client.read("readings", start="first"):
            print(message.position, message.key, message.body.decode())
            if message.position == 3:
                break

        # The cluster keeps this place: a program that starts again goes on where it stopped.
        await client.add_cursor("readings", "kitchen", {"filter_subject": "sensor.kitchen"})
        seen = 0
        async for message in client.read("readings", cursor="kitchen"):
            print("kitchen:", message.body.decode())
            await message.settle(wait=True)
            seen += 1
            if seen == 2:
                break


asyncio.run(main())
