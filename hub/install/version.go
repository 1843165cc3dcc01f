package install

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// gitDescribeSuffix is what git puts behind the newest tag: how many commits came after it.
var gitDescribeSuffix = regexp.MustCompile(`(?:-([0-9]+)-g[0-9a-f]+)?(?:-dirty)?$`)

// compareVersions of two versions: negative where a is the older. Where either is of no release,
// as dev and a bare commit are, known is false, unless they are the same. Both forms of
// Makefile's VERSION are known: v1.2.3 and v1.2.3-4-gabcdef0, which is newer.
func compareVersions(a, b string) (older int, known bool) {
	if a == b {
		return 0, true
	}
	left, leftCommits, ok := parseVersion(a)
	right, rightCommits, too := parseVersion(b)
	if !ok || !too {
		return 0, false
	}
	switch {
	case left.LessThan(right):
		return -1, true
	case right.LessThan(left):
		return 1, true
	}
	return cmp.Compare(leftCommits, rightCommits), true
}

// IsRelease tells that a version is of a release, or of something built after one.
func IsRelease(v string) bool {
	_, _, ok := parseVersion(v)
	return ok
}

// findDowngraded is one of the versions that a member has which the wanted one would downgrade, as
// far as is known; empty for none. Builds of no release have no order: one may take the
// place of another, and not that of a release.
func findDowngraded(want string, have []string) string {
	for _, v := range have {
		if v == "" || !IsRelease(v) && !IsRelease(want) {
			continue
		}
		if older, known := compareVersions(want, v); !known || older < 0 {
			return v
		}
	}
	return ""
}

func parseVersion(v string) (base *version.Version, commits int, ok bool) {
	found := gitDescribeSuffix.FindStringSubmatchIndex(v)
	tag := v
	if found != nil {
		tag = v[:found[0]]
		if found[2] >= 0 {
			commits, _ = strconv.Atoi(v[found[2]:found[3]]) // digits
		}
	}
	base, err := version.ParseSemantic(strings.TrimPrefix(tag, "v"))
	return base, commits, err == nil
}
