package doctor

import (
	"fmt"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"github.com/pelotech/ot-fleet/api/compatibility"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func (e *examiner) hasCDI() bool {
	if !e.Serves(KindDataVolume) {
		e.addSkip("CDI is not installed: see cdi-present")
	}
	return e.Serves(KindDataVolume)
}

func (e *examiner) cdiPresent() {
	if !e.Serves(KindDataVolume) {
		e.addFail("", "CDI's DataVolume is not served", "CDI "+strings.Join(compatibility.CDIMinors, " or "), "")
		return
	}
	e.addPass("", "CDI's DataVolume is served")
}

func (e *examiner) cdiVersion() {
	if !e.hasCDI() {
		return
	}
	if len(e.CDI) == 0 {
		e.addWarn("", "CDI's kinds are served, and there is no CDI object", "one that is "+deployed, "")
	}
	for _, c := range e.CDI {
		e.judgeComponent("CDI", c, compatibility.CDIMinors)
	}
}

// importProxy judges the proxy that imports go through.
func (e *examiner) importProxy() {
	if !e.hasCDI() {
		return
	}
	c := e.CDIConfig
	if c == nil {
		e.addFail("CDIConfig config", "does not exist", "CDI makes it when it starts", "")
		return
	}
	before := len(e.findings)
	for _, proxy := range []struct{ name, url string }{{"HTTPProxy", c.HTTPProxy}, {"HTTPSProxy", c.HTTPSProxy}} {
		if problem := describeProxyProblem(proxy.url); problem != "" {
			e.addFail("importProxy."+proxy.name+" of CDIConfig config", problem, "a URL, as in http://proxy.example:3128", "")
		}
	}
	if c.TrustedCAMissing {
		e.addFail("ConfigMap "+c.TrustedCA, "importProxy.trustedCAProxy names it, and it does not exist in CDI's namespace", "the certificate authorities of the proxy, in key ca.pem", "")
	}
	if inside := e.imagesThroughProxy(); len(inside) > 0 {
		e.addWarn("importProxy.noProxy of CDIConfig config", "sources within the cluster are fetched through the proxy: "+joinFirst(inside),
			"noProxy covers .svc and names without a dot", "")
	}
	switch {
	case len(e.findings) > before:
	case c.HTTPProxy == "" && c.HTTPSProxy == "":
		e.addPass("", "no proxy: imports reach sources directly")
	default:
		e.addPass("", "imports go through %s", strings.Join(strings.Fields(c.HTTPProxy+" "+c.HTTPSProxy), ", "))
	}
}

// describeProxyProblem says why Go programs, as CDI's importer, cannot use a proxy.
func describeProxyProblem(proxy string) string {
	if proxy == "" {
		return ""
	}
	u, err := url.Parse(proxy)
	switch {
	case err != nil || u.Host == "" && strings.Contains(proxy, "://"):
		return fmt.Sprintf("%q is not a URL", proxy)
	case u.Scheme != "" && u.Host != "" && u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "socks5" && u.Scheme != "socks5h":
		return fmt.Sprintf("%q has a scheme that no importer knows", proxy)
	}
	return ""
}

// imagesThroughProxy returns images with a source within the cluster that goes through the
// proxy.
func (e *examiner) imagesThroughProxy() (names []string) {
	proxyFor := (&httpproxy.Config{HTTPProxy: e.CDIConfig.HTTPProxy, HTTPSProxy: e.CDIConfig.HTTPSProxy, NoProxy: e.CDIConfig.NoProxy}).ProxyFunc()
	for i := range e.Images {
		img := &e.Images[i]
		if img.SourceType != v1alpha1.SourceHTTP && img.SourceType != v1alpha1.SourceS3 {
			continue
		}
		u, err := url.Parse(img.URL)
		if err != nil || !isClusterName(u.Hostname()) {
			continue
		}
		if proxy, err := proxyFor(u); proxy != nil && err == nil {
			names = append(names, img.key())
		}
	}
	return names
}

// isClusterName reports whether a host can only be a Service.
func isClusterName(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host != "" && !strings.Contains(host, ":") && (!strings.Contains(host, ".") || strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, ".svc.cluster.local"))
}
