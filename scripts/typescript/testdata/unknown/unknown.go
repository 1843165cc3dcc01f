// Package unknown encodes a type in its own way.
package unknown

// Secret is not encoded as the struct that it is.
type Secret struct {
	A string `json:"a"`
}

// MarshalText hides it.
func (*Secret) MarshalText() ([]byte, error) { return nil, nil }
