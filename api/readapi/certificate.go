package readapi

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
)

// ReplicaName is the TLS server name that clients of a replica ask for. It selects the
// certificate whose fingerprint is in the replica's Lease.
const ReplicaName = "replica.ot-hub.internal"

// Fingerprint is the SHA-256 of a certificate's public key, in hexadecimal digits.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// ErrWrongCertificate is the error of a connection to a server with another certificate.
var ErrWrongCertificate = errors.New("its certificate does not match its Lease")

// PinCertificate returns the TLS configuration of a client that trusts the certificate with
// this fingerprint alone.
func PinCertificate(fingerprint string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         ReplicaName,
		InsecureSkipVerify: true, //nolint:gosec // it is self-signed, and verified by its fingerprint
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || Fingerprint(state.PeerCertificates[0]) != fingerprint {
				return ErrWrongCertificate
			}
			return nil
		},
	}
}
