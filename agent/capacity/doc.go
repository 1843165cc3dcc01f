// Package capacity decides whether a cluster has room for an image, by what it
// tells of its storage: CSIStorageCapacities and ResourceQuotas.
//
// It is pure: what was read in, what is lacking out. What nobody tells is not
// lacking: most clusters tell of one of the two, or of none.
package capacity
