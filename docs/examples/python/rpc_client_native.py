import asyncio
import sys
import uuid

import quorate


async def main(number: str) -> None:
    async with quorate.connect() as client:
        await client.declare("square")
        answers = f"answers.{uuid.uuid4().hex}"
        await client.declare(answers, {"x-expires": 60_000})  # goes when nobody uses it
        await client.publish("square", number.encode(), key="1", headers={"reply-to": answers})
        async with asyncio.timeout(10):
            async for answer in client.consume(answers):
                print(f"{number} squared is {answer.body.decode()} (question {answer.key})")
                await answer.settle()
                break
        await client.delete(answers)


asyncio.run(main(sys.argv[1]))
