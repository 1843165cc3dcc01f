package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// certificateValidity is long: the certificate ends with its process.
const certificateValidity = 10 * 365 * 24 * time.Hour

// NewCertificate creates a self-signed serving certificate for one process. Clients trust
// it by the fingerprint of its key.
func NewCertificate(address string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the serving key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("creating the serving certificate: %w", err)
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
		return nil, fmt.Errorf("creating the serving certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing the serving certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// SelectCertificate serves the certificate of this process to other replicas, and the given
// one, if any, to everybody else: the given one may change, the fingerprint in the Lease
// does not.
func SelectCertificate(own *tls.Certificate, given *certwatcher.CertWatcher) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if given == nil || hello.ServerName == readapi.ReplicaName {
			return own, nil
		}
		return given.GetCertificate(hello)
	}
}
