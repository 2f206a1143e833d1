package server

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// A node's name belongs to one machine. Each machine has a key that never leaves it, and registers its Node with the
// hash of the key as an annotation, in the write that creates the Node. From then on the name belongs to that machine:
// another key gets no certificate for it (joiner.join), and certificates that it already has are refused
// (members.check). Deleting the Node frees the name and excludes the machine, which needs a join token to come back.
//
// The server's own node uses no certificate. Its machine's identity is the cluster's first client CA (pki.Set.Machine),
// whose key no other machine has.
const machineAnnotation = "coracle.dev/machine"

// ownedByOther is the error for a node name that belongs to another machine.
func ownedByOther(name string) error {
	return fmt.Errorf("the node name %s belongs to another machine: if that one is gone for good, free the name with "+
		"`coracle ctl delete node %s`; else choose another with --node-name", name, name)
}

// mine reports whether a Node belongs to this machine or to none.
func mine(node *corev1.Node, machine string) bool {
	o := owner(node)
	return o == "" || o == machine
}

// owner returns the machine that a Node belongs to; empty if none, such as for one created by a user.
func owner(node *corev1.Node) string { return node.Annotations[machineAnnotation] }

// check implements agent.Config.VerifyNode. A remote machine is refused when it joins. In the server's own process this
// is the only check, and the API cannot be used to delete a Node while the server does not start.
func (m *membership) check(node *corev1.Node) error {
	switch {
	case mine(node, m.machine):
		return nil
	case m.remote != nil:
		return ownedByOther(node.Name)
	}
	return fmt.Errorf("the node name %s belongs to another machine, which has joined under it, or the keys of this "+
		"cluster were lost: choose another name for this machine with --node-name, or restore the keys from a backup, or "+
		"run `coracle server --no-node` and free the name with `coracle ctl delete node %s`", node.Name, node.Name)
}
