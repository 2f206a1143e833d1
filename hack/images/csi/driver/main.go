// Command driver is the tests' CSI driver as a program in a pod, for upstream's sidecars. It refuses calls in an
// order that the CSI specification forbids.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-dev/coracle/test/csidriver"
	"github.com/coracle-dev/coracle/test/csidriver/controller"
)

func main() {
	log.SetFlags(0)
	name := flag.String("name", "", "the driver's name")
	kubelet := flag.String("kubelet", "", "the directory that drivers share with the agent")
	node := flag.String("node", "", "the node's name, its topology")
	data := flag.String("data", "", "the directory of the volumes")
	flag.Parse()
	topology := map[string]string{*name + "/node": *node}
	volumes := &controller.Server{Data: *data, Capacity: 10 << 30, Topology: topology}
	d := &csidriver.Driver{
		Name: *name, Kubelet: *kubelet, Public: *kubelet, Data: *data, Topology: topology, Controller: volumes,
		Groups: &controller.GroupServer{Server: volumes},
		Capabilities: []csi.NodeServiceCapability_RPC_Type{
			csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
			csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		},
		Call: func(_ context.Context, method string, request any) error {
			log.Print(method)
			if r, ok := request.(*csi.NodeStageVolumeRequest); ok && !volumes.Attached(r.VolumeId) {
				return status.Error(codes.FailedPrecondition, "the volume is not attached")
			}
			return nil
		},
	}
	if err := d.Start(); err != nil {
		log.Fatal(err)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	<-end
	d.Stop()
}
