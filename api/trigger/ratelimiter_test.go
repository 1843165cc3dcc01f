package trigger_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	newController = regexp.MustCompile(`(ControllerManagedBy|\bcontroller\.New)\(`)
	rateLimiter   = regexp.MustCompile(`\bRateLimiter:`)
)

// TestControllersHaveRateLimiter: one without would wait for up to 1000 s after errors.
func TestControllersHaveRateLimiter(t *testing.T) {
	controllers := 0
	for _, program := range []string{"hub", "agent"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("..", "..", program), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			created := len(newController.FindAll(text, -1))
			controllers += created
			assert.Len(t, rateLimiter.FindAll(text, -1), created, "rate limiters of the controllers of %s", path)
			return err
		}))
	}
	assert.GreaterOrEqual(t, controllers, 20)
}
