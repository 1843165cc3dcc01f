package join

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/nacl/box"
)

// keySize of an X25519 key.
const keySize = 32

// Key is a key pair of an agent.
type Key struct {
	public, private *[keySize]byte
}

// NewKey makes a key pair. random must be crypto/rand's.
func NewKey(random io.Reader) (Key, error) {
	public, private, err := box.GenerateKey(random)
	if err != nil {
		return Key{}, fmt.Errorf("making a key pair: %w", err)
	}
	return Key{public: public, private: private}, nil
}

// ParseKey reads what Bytes wrote.
func ParseKey(data []byte) (Key, error) {
	if len(data) != 2*keySize {
		return Key{}, fmt.Errorf("a key pair has %d bytes, and this has %d", 2*keySize, len(data))
	}
	return Key{public: (*[keySize]byte)(data[:keySize:keySize]), private: (*[keySize]byte)(data[keySize:])}, nil
}

// Bytes of the pair, to be kept: the public key, then the private one.
func (k Key) Bytes() []byte { return append(append([]byte(nil), k.public[:]...), k.private[:]...) }

// Public is the public key as a ClusterJoin has it.
func (k Key) Public() string { return base64.StdEncoding.EncodeToString(k.public[:]) }

// Open returns what was sealed for this key.
func (k Key) Open(sealed []byte) ([]byte, error) {
	message, opened := box.OpenAnonymous(nil, sealed, k.public, k.private)
	if !opened {
		return nil, errors.New("it is not sealed for this key")
	}
	return message, nil
}

// Seal makes of a message what only the holder of a public key's other half can
// open. random must be crypto/rand's.
func Seal(publicKey string, message []byte, random io.Reader) ([]byte, error) {
	public, err := parsePublic(publicKey)
	if err != nil {
		return nil, err
	}
	sealed, err := box.SealAnonymous(nil, message, public, random)
	if err != nil {
		return nil, fmt.Errorf("sealing: %w", err)
	}
	return sealed, nil
}

// Fingerprint of a public key, for people to compare.
func Fingerprint(publicKey string) (string, error) {
	public, err := parsePublic(publicKey)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(public[:])
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:]), nil
}

func parsePublic(text string) (*[keySize]byte, error) {
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("reading the public key: %w", err)
	}
	if len(data) != keySize {
		return nil, fmt.Errorf("a public key has %d bytes, and this has %d", keySize, len(data))
	}
	return (*[keySize]byte)(data), nil
}
