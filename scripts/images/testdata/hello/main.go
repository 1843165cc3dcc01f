// Command hello is what the tests put into an image.
package main

import (
	"fmt"
	"os/user"
)

var version = "dev"

// Package user is one that links with the system's libraries where it may.
func main() {
	me, err := user.Current()
	fmt.Println("hello", me, version, err)
}
