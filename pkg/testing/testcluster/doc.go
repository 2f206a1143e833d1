// Package testcluster gives a test a Kubernetes cluster of its own: an API server with its store in the test's process,
// ready in well under 100 ms; with reconcilers, scheduler and nodes that run nothing; or a whole cluster with real
// pods, which needs root.
//
//	func TestController(t *testing.T) {
//		cluster := testcluster.New(t, testcluster.Config{})
//		api := kubernetes.NewForConfigOrDie(cluster.REST())
//		...
//	}
//
// Clusters share nothing: any number of parallel tests has one each. They listen on free ports of the loopback
// interface, keep their data in a temporary directory without syncing it, and are gone when their test ends.
//
// Its invariant: after Stop nothing of a cluster is left, neither goroutine nor file.
package testcluster
