//go:build linux

package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// credentialLifetime is that of certificates and of tokens of service accounts.
const credentialLifetime = 7 * 24 * time.Hour

// credentials are the files that the programs of a control plane share.
type credentials struct {
	token                     string
	tokenFile                 string
	authority                 []byte
	authorityFile             string
	servingCert, servingKey   string
	accountsKey, accountsCert string
}

func newCredentials(dir string) (*credentials, error) {
	c := &credentials{
		tokenFile:     filepath.Join(dir, "tokens.csv"),
		authorityFile: filepath.Join(dir, "ca.crt"),
		servingCert:   filepath.Join(dir, "apiserver.crt"),
		servingKey:    filepath.Join(dir, "apiserver.key"),
		accountsKey:   filepath.Join(dir, "service-accounts.key"),
		accountsCert:  filepath.Join(dir, "service-accounts.crt"),
	}
	fail := func(err error) (*credentials, error) {
		return nil, fmt.Errorf("making certificates and tokens in %s: %w", dir, err)
	}
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return fail(err)
	}
	c.token = hex.EncodeToString(secret)
	if err := os.WriteFile(c.tokenFile, []byte(c.token+",admin,admin,system:masters\n"), 0o600); err != nil {
		return fail(err)
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ot-fleet-local"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	rootKey, rootDER, err := issueCertificate(root, root, nil)
	if err != nil {
		return fail(err)
	}
	c.authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER})
	if err := os.WriteFile(c.authorityFile, c.authority, 0o600); err != nil {
		return fail(err)
	}
	serving := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost", "kubernetes", "kubernetes.default.svc"},
	}
	if err := c.writeCertificate(serving, root, rootKey, c.servingCert, c.servingKey); err != nil {
		return fail(err)
	}
	accounts := &x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "service-accounts"}, KeyUsage: x509.KeyUsageDigitalSignature}
	if err := c.writeCertificate(accounts, root, rootKey, c.accountsCert, c.accountsKey); err != nil {
		return fail(err)
	}
	return c, nil
}

func (c *credentials) writeCertificate(template, issuer *x509.Certificate, issuerKey crypto.Signer, certFile, keyFile string) error {
	key, der, err := issueCertificate(template, issuer, issuerKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600)
}

// issueCertificate creates a key and a certificate, self-signed without an issuer's key.
func issueCertificate(template, issuer *x509.Certificate, issuerKey crypto.Signer) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if issuerKey == nil {
		issuerKey = key
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(credentialLifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), issuerKey)
	return key, der, err
}
