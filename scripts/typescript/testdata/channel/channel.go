// Package channel has a field that no JSON can hold.
package channel

// Stream has one.
type Stream struct {
	Events chan int `json:"events"`
}
