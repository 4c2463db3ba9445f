package main

// How a program talks to the harness: tests/acceptance/clients/programs/program.py.

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"time"
)

const (
	waitMax      = 20 * time.Second
	reconnectMax = 60 * time.Second
	beforeKill   = 50
	afterKill    = 50
)

var given struct {
	Urls   []string `json:"urls"`
	Prefix string   `json:"prefix"`
	Steps  []string `json:"steps"`
}

var answers = bufio.NewScanner(os.Stdin)

func say(values map[string]any) {
	line, _ := json.Marshal(values)
	fmt.Println(string(line))
}

func ask(what, queue string) map[string]any {
	say(map[string]any{"ask": what, "queue": queue})
	answer := map[string]any{}
	if answers.Scan() {
		_ = json.Unmarshal(answers.Bytes(), &answer)
	}
	return answer
}

func name(what string) string { return given.Prefix + "." + what }

func main() {
	if err := json.Unmarshal([]byte(os.Args[1]), &given); err != nil {
		panic(err)
	}
	for _, step := range given.Steps {
		work, known := steps[step]
		if !known {
			say(map[string]any{"step": step, "ok": nil, "detail": "no part of its program"})
			continue
		}
		detail, err := attempt(work)
		if err != nil {
			detail = err.Error()
		}
		say(map[string]any{"step": step, "ok": err == nil, "detail": detail})
	}
}

// attempt makes an error of what `must` and `equal` threw.
func attempt(work func() string) (detail string, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("%v", thrown)
		}
	}()
	return work(), nil
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func equal(found, wanted any, what string) {
	if !reflect.DeepEqual(found, wanted) {
		panic(fmt.Sprintf("%s: %v instead of %v", what, found, wanted))
	}
}
