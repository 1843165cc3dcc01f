// Command hello is what the tests put into an image.
package main

import "fmt"

var version = "dev"

func main() { fmt.Println("hello", version) }
