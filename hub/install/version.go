package install

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// gitDescribeSuffix is what git describe appends to the newest tag: the number of commits
// since.
var gitDescribeSuffix = regexp.MustCompile(`(?:-([0-9]+)-g[0-9a-f]+)?(?:-dirty)?$`)

// compareVersions returns a negative number if a is older. known is false if one is not
// of a release, as dev or a bare commit, and they differ. v1.2.3-4-gabcdef0 is newer than
// v1.2.3.
func compareVersions(a, b string) (older int, known bool) {
	if a == b {
		return 0, true
	}
	left, leftCommits, leftOK := parseVersion(a)
	right, rightCommits, rightOK := parseVersion(b)
	if !leftOK || !rightOK {
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

// IsRelease reports whether a version is a release, or a build on top of one.
func IsRelease(v string) bool {
	_, _, ok := parseVersion(v)
	return ok
}

// findDowngraded returns a version that want would downgrade, as far as is known; empty
// for none. Builds without a release have no order: one may replace another, but not a
// release.
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
