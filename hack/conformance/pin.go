//go:build tools

// Package conformance pins the packages from which the suite's images are built.
package conformance

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/test/images/agnhost"
	_ "k8s.io/sample-apiserver"
)
