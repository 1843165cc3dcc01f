//go:build linux

// Package oidc is a provider of ID tokens that an API server trusts, and a sign-in proxy that
// puts them into requests, as oauth2-proxy does.
package oidc

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

const (
	// ClientID is the audience of the tokens.
	ClientID = "kubernetes"
	keyID    = "key"
	// keyBits of the provider's key: API servers take RS256 by default.
	keyBits = 2048
	// keysPatience is how long an API server may take to read the provider's keys. It asks every
	// ten seconds.
	keysPatience = 3 * time.Minute
)

// Provider issues ID tokens. Start it before the API server, and stop it after that.
type Provider struct {
	// Issuer is its URL.
	Issuer string

	server    *httptest.Server
	key       *rsa.PrivateKey
	dir       string
	removeDir func() error
}

// Start serves a provider over TLS, on a loopback port.
func Start() (*Provider, error) {
	key, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return nil, fmt.Errorf("making the provider's key: %w", err)
	}
	served := &oidctest.Server{PublicKeys: []oidctest.PublicKey{{PublicKey: key.Public(), KeyID: keyID, Algorithm: oidc.RS256}}}
	p := &Provider{key: key, server: httptest.NewTLSServer(served)}
	p.Issuer = p.server.URL
	served.SetIssuer(p.Issuer)
	if p.dir, p.removeDir, err = process.TempDir("ot-fleet-oidc-"); err != nil {
		p.server.Close()
		return nil, err
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	if err := os.WriteFile(p.authorityFile(), authority, 0o600); err != nil {
		return nil, fmt.Errorf("writing the provider's certificate: %w", err)
	}
	return p, nil
}

func (p *Provider) authorityFile() string { return filepath.Join(p.dir, "ca.crt") }

// APIServerArgs are the flags with which an API server takes the provider's tokens: names are those
// of claim email, groups those of claim groups, without a prefix.
func (p *Provider) APIServerArgs() []string {
	return []string{
		"--oidc-issuer-url=" + p.Issuer, "--oidc-client-id=" + ClientID, "--oidc-ca-file=" + p.authorityFile(),
		"--oidc-username-claim=email", "--oidc-username-prefix=-", "--oidc-groups-claim=groups",
	}
}

// Stop ends the provider.
func (p *Provider) Stop() error {
	p.server.Close()
	return p.removeDir()
}

// Token issues an ID token that ends after a time; a negative one has ended.
func (p *Provider) Token(user string, life time.Duration, groups ...string) (string, error) {
	now := time.Now()
	claims, err := json.Marshal(map[string]any{
		"iss": p.Issuer, "aud": ClientID, "sub": user, "email": user, "email_verified": true, "groups": groups,
		"iat": now.Add(-time.Minute).Unix(), "exp": now.Add(life).Unix(),
	})
	if err != nil {
		return "", err
	}
	return oidctest.SignIDToken(p.key, keyID, oidc.RS256, string(claims)), nil
}

// AwaitTrusted waits until an API server takes the provider's tokens: it reads the keys after it is
// ready.
func (p *Provider) AwaitTrusted(ctx context.Context, apiServer *rest.Config) error {
	token, err := p.Token("ready@example.com", time.Hour)
	if err != nil {
		return err
	}
	cfg := rest.AnonymousClientConfig(apiServer)
	cfg.BearerToken = token
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, keysPatience, true, func(ctx context.Context) (bool, error) {
		_, last = clients.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s to take tokens of %s: %w (last answer: %v)", apiServer.Host, p.Issuer, err, last)
	}
	return nil
}

// StartProxy serves a sign-in proxy in front of a dashboard over TLS. It replaces Authorization of
// each request by the token that tokenOf returns; "" for none. Its certificate is self-signed, and
// so may be that of the target.
func StartProxy(target string, tokenOf func(*http.Request) string) (*httptest.Server, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("reading the proxy's target: %w", err)
	}
	return httptest.NewTLSServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // as oauth2-proxy with --pass-host-header, its default
			r.SetXForwarded()
			r.Out.Header.Del("Authorization")
			if token := tokenOf(r.In); token != "" {
				r.Out.Header.Set("Authorization", "Bearer "+token)
			}
		},
		FlushInterval: -1,
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // it is in the same process's loopback
	}), nil
}
