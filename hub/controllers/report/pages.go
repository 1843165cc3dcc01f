package report

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Limits of the decoded pages that are kept for details, the most recently read ones.
const (
	maxCachedPages     = 256
	maxCachedPageBytes = 16 << 20
)

// pageCache has one version of each page that somebody asked for.
type pageCache struct {
	mu sync.Mutex
	*byteCache[cachedPage]
}

type cachedPage struct {
	version string
	images  []v1alpha1.ReportedImage
	bytes   int
}

func newPageCache() *pageCache {
	return &pageCache{byteCache: newByteCache[cachedPage](maxCachedPages, maxCachedPageBytes)}
}

func (c *pageCache) get(key types.NamespacedName, version string) ([]v1alpha1.ReportedImage, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	page, found := c.byteCache.get(key)
	return page.images, found && page.version == version
}

func (c *pageCache) add(key types.NamespacedName, page cachedPage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(key, page, page.bytes)
}

// Page returns the images of a page that the root of a member's report lists; false if
// there is no such page.
func (r *Reconciler) Page(ctx context.Context, member, page string) ([]v1alpha1.ReportedImage, bool, error) {
	root := r.Store.Root(member)
	if _, listed := slices.BinarySearch(root.PageNames(), page); !listed {
		return nil, false, nil
	}
	key := types.NamespacedName{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: page}
	metadata := &metav1.PartialObjectMetadata{}
	metadata.SetGroupVersionKind(clusterReportKind)
	switch err := r.Cached.Get(ctx, key, metadata); {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("reading the metadata of ClusterReport %s: %w", key, err)
	}
	if images, found := r.pages.get(key, metadata.ResourceVersion); found {
		return images, true, nil
	}
	report, err := r.LivePage(ctx, member, page)
	if err != nil || report == nil {
		return nil, false, err
	}
	r.pages.add(key, cachedPage{version: report.ResourceVersion, images: report.Page.Images, bytes: v1alpha1.EncodedSize(report.Page)})
	return report.Page.Images, true, nil
}

// LivePage reads a page of a member's report from the API server; nil if there is none,
// or if it cannot be decoded. Decisions have to check that it has the sequence that the root lists.
func (r *Reconciler) LivePage(ctx context.Context, member, page string) (*v1alpha1.ClusterReport, error) {
	report, err := boundedRead(r.readLive)(ctx, member, page)
	if errors.Is(err, errUndecodable) || err == nil && (report == nil || report.Page == nil) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return report, nil
}
