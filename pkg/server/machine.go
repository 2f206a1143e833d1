package server

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// machineAnnotation binds a node's name to one machine. Each machine has a key that never leaves it, and puts the hash
// of that key into this annotation when it creates its Node. From then on the name belongs to that machine: another
// key gets no certificate for it (joiner.join), and certificates issued to another key earlier are rejected
// (members.check). Deleting the Node frees the name and excludes the machine, which needs a join token to come back.
//
// The server's own node uses no certificate. Its machine is identified by the cluster's first client CA
// (pki.Set.Machine), whose key no other machine has.
const machineAnnotation = "coracle.dev/machine"

func ownedByOther(name string) error {
	return fmt.Errorf("the node name %s belongs to another machine: if that one is gone for good, free the name with "+
		"`coracle ctl delete node %s`; else choose another with --node-name", name, name)
}

// mine reports whether a Node belongs to this machine or has no owner.
func mine(node *corev1.Node, machine string) bool {
	o := owner(node)
	return o == "" || o == machine
}

// owner returns the machine that a Node belongs to, or "" if it has none, as a Node that a user created.
func owner(node *corev1.Node) string { return node.Annotations[machineAnnotation] }

// check implements agent.Config.VerifyNode. The server rejects another machine when it joins; for the server's own
// node this is the only check. Its error does not suggest to delete the Node through the API, which is down while
// the server fails to start.
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
