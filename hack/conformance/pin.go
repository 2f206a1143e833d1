//go:build tools

// The suite's images are built from this package, which nothing imports.
package conformance

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/test/images/agnhost"
	_ "k8s.io/sample-apiserver"
)
