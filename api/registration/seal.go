package registration

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

// KeyPair is a key pair of an agent.
type KeyPair struct {
	publicKey, privateKey *[keySize]byte
}

// NewKeyPair makes a key pair. random must be crypto/rand's.
func NewKeyPair(random io.Reader) (KeyPair, error) {
	public, private, err := box.GenerateKey(random)
	if err != nil {
		return KeyPair{}, fmt.Errorf("making a key pair: %w", err)
	}
	return KeyPair{publicKey: public, privateKey: private}, nil
}

// ParseKeyPair reads what Bytes wrote.
func ParseKeyPair(data []byte) (KeyPair, error) {
	if len(data) != 2*keySize {
		return KeyPair{}, fmt.Errorf("a key pair has %d bytes, and this has %d", 2*keySize, len(data))
	}
	return KeyPair{publicKey: (*[keySize]byte)(data[:keySize:keySize]), privateKey: (*[keySize]byte)(data[keySize:])}, nil
}

// Bytes of the pair, to be kept: the public key, then the private one.
func (k KeyPair) Bytes() []byte {
	return append(append([]byte(nil), k.publicKey[:]...), k.privateKey[:]...)
}

// PublicKey is the public key as a ClusterJoin has it.
func (k KeyPair) PublicKey() string { return base64.StdEncoding.EncodeToString(k.publicKey[:]) }

// Open returns what was sealed for this key.
func (k KeyPair) Open(sealed []byte) ([]byte, error) {
	message, opened := box.OpenAnonymous(nil, sealed, k.publicKey, k.privateKey)
	if !opened {
		return nil, errors.New("it is not sealed for this key")
	}
	return message, nil
}

// Seal makes of a message what only the holder of a public key's other half can
// open. random must be crypto/rand's.
func Seal(publicKey string, message []byte, random io.Reader) ([]byte, error) {
	public, err := parsePublicKey(publicKey)
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
	public, err := parsePublicKey(publicKey)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(public[:])
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:]), nil
}

func parsePublicKey(text string) (*[keySize]byte, error) {
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("reading the public key: %w", err)
	}
	if len(data) != keySize {
		return nil, fmt.Errorf("a public key has %d bytes, and this has %d", keySize, len(data))
	}
	return (*[keySize]byte)(data), nil
}
