//go:build linux

package hostilemember_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// authority signs certificates.
type authority struct {
	certified *x509.Certificate
	key       *ecdsa.PrivateKey
	pem       []byte
}

// trusted is the authority in the kubeconfigs, stranger one that is not.
var trusted, stranger = newAuthority(), newAuthority()

func newAuthority() *authority {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	return &authority{certified: must(x509.ParseCertificate(der)), key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// certificate is valid until a time, for an IP address or a host name.
func (a *authority) certificate(until time.Time, name string) tls.Certificate {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: until,
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	der := must(x509.CreateCertificate(rand.Reader, template, a.certified, &key.PublicKey, a.key))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
