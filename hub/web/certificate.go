package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"math/big"
	"net"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// certificateValidity of a certificate that is made for one process, and ends with it.
const certificateValidity = 10 * 365 * 24 * time.Hour

// NewCertificate makes a certificate for a process to serve with, signed by itself:
// who is to trust it is told the fingerprint of its key.
func NewCertificate(address string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key to serve with: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("making the certificate to serve with: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "ot-hub"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certificateValidity),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if ip := net.ParseIP(address); ip != nil {
		template.IPAddresses = append(template.IPAddresses, ip)
	} else if address != "" {
		template.DNSNames = append(template.DNSNames, address)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the certificate to serve with: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate to serve with: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// replicaName is what a replica that forwards calls the one that it asks: by it the
// certificate is chosen whose fingerprint the Lease tells.
const replicaName = "replica.ot-hub.internal"

// SelectCertificate has other replicas be shown the certificate of this process, and everybody else
// one that was given, where one was: that may change while a Lease tells of the other.
func SelectCertificate(own *tls.Certificate, given *certwatcher.CertWatcher) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if given == nil || hello.ServerName == replicaName {
			return own, nil
		}
		return given.GetCertificate(hello)
	}
}

// Fingerprint is the SHA-256 of a certificate's public key, in hexadecimal digits.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}
