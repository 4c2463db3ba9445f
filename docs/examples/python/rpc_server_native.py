import asyncio

import quorate


async def main() -> None:
    async with quorate.connect() as client:
        await client.declare("square")
        print("serving", flush=True)

        async def handler(request: quorate.Delivery) -> None:
            answer = str(int(request.body) ** 2).encode()
            # To where the caller waits, with the key that tells it which question this answers.
            await client.publish(str(request.headers["reply-to"]), answer, key=request.key)

        await client.work("square", handler)


asyncio.run(main())
