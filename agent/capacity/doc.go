// Package capacity decides whether a cluster has storage for an image.
//
// Reader reads CSIStorageCapacities, ResourceQuotas and the CDIConfig, once for
// all images. FindShortage is pure: it decides by what was read. Unknown capacity
// is no shortage, as most clusters publish one of the two, or none.
package capacity
