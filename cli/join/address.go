package join

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// IsServiceAddress reports whether a URL is that of Service kubernetes, which only Pods of the same
// cluster reach.
func IsServiceAddress(server string, clusterIPs []string) bool {
	parsed, err := url.Parse(server)
	if err != nil {
		return false
	}
	host := parsed.Hostname()
	return slices.Contains(clusterIPs, host) || host == "kubernetes.default" || strings.HasPrefix(host, "kubernetes.default.svc")
}

// ClusterOnlyError refuses a join token that an agent in another cluster cannot use.
func ClusterOnlyError(member, server string) error {
	return fmt.Errorf("the join token of %s names %s, which only Pods of the hub's own cluster reach: set pull.apiURL and pull.apiCA of chart ot-hub, run %s, and then this command again",
		member, server, NewTokenCommand(member))
}
