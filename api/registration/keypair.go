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

// KeyPair is an agent's X25519 key pair.
type KeyPair struct {
	publicKey, privateKey *[keySize]byte
}

// NewKeyPair creates a key pair. random must be crypto/rand.Reader.
func NewKeyPair(random io.Reader) (KeyPair, error) {
	public, private, err := box.GenerateKey(random)
	if err != nil {
		return KeyPair{}, fmt.Errorf("creating a key pair: %w", err)
	}
	return KeyPair{publicKey: public, privateKey: private}, nil
}

// ParseKeyPair parses the result of Bytes.
func ParseKeyPair(data []byte) (KeyPair, error) {
	if len(data) != 2*keySize {
		return KeyPair{}, fmt.Errorf("a key pair must have %d bytes, not %d", 2*keySize, len(data))
	}
	return KeyPair{publicKey: (*[keySize]byte)(data[:keySize:keySize]), privateKey: (*[keySize]byte)(data[keySize:])}, nil
}

// Bytes returns the public key followed by the private one, for storage.
func (k KeyPair) Bytes() []byte {
	return append(append([]byte(nil), k.publicKey[:]...), k.privateKey[:]...)
}

// PublicKey returns the public key in base64, as in a ClusterJoin.
func (k KeyPair) PublicKey() string { return base64.StdEncoding.EncodeToString(k.publicKey[:]) }

// OpenSealed returns the message that was sealed for this key.
func (k KeyPair) OpenSealed(sealed []byte) ([]byte, error) {
	message, opened := box.OpenAnonymous(nil, sealed, k.publicKey, k.privateKey)
	if !opened {
		return nil, errors.New("it is not sealed for this key")
	}
	return message, nil
}

// Seal encrypts a message so that only the holder of the matching private key can open
// it. random must be crypto/rand.Reader.
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

// Fingerprint returns the fingerprint of a public key, for people to compare.
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
		return nil, fmt.Errorf("a public key must have %d bytes, not %d", keySize, len(data))
	}
	return (*[keySize]byte)(data), nil
}
