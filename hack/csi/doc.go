// Package csi pins the versions of the sidecars of CSI drivers whose images hack/images/csi builds. It is a module of
// its own, because Coracle links nothing of them.
package csi
