// Package upstream runs Kubernetes' own kube-apiserver, kube-scheduler and kube-controller-manager with etcd, for
// tests that compare Coracle with them or run its parts against them. `make upstream` compiles them into
// dist/upstream, which takes minutes, so tests that need them run only with CORACLE_TEST_UPSTREAM=1.
//
// TestUpstreamAnswersAlike sends the same requests to both API servers and compares their answers;
// alike_deliberate_test.go has the intended differences.
//
// Its invariant: when Stop returns, every process that Start started has ended.
package upstream
