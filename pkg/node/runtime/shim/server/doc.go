// Package server implements a pod's shim: it runs the pod's containers with libcontainer, writes their logs, holds their terminals and records their exit
// status.
//
// It may import agent/runtime/shim, agent/runtime/crilog, agent/mount and libcontainer, and nothing that makes the shim large: no k8s.io, no containerd. Its invariant:
// a container's state.json is written before watchers are notified.
package server
