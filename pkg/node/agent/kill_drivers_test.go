package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	driverName = "driver.example.com"
	gadget     = "example.com/gadget"
)

// claimCall is the DRA driver: a prepared claim is a file, which outlives the process.
func (l life) claimCall(_ context.Context, method, claim string) error {
	file := l.path("prepared", claim)
	if method == "unprepare" {
		if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600))
}

// gadgets is a device plugin.
type gadgets struct {
	deviceplugin.UnimplementedDevicePluginServer
}

// start serves the plugin and registers it once the agent listens.
func (g gadgets) start(ctx context.Context, dir string) (*grpc.Server, error) {
	agent, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond},
		}))
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	// a listening agent has removed the sockets of earlier plugins
	for s := agent.GetState(); s != connectivity.Ready; s = agent.GetState() {
		agent.Connect() // retry after a failed attempt
		if !agent.WaitForStateChange(ctx, s) {
			return nil, ctx.Err()
		}
	}
	l, err := net.Listen("unix", filepath.Join(dir, "gadgets.sock"))
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(server, g)
	go func() { _ = server.Serve(l) }()
	_, err = deviceplugin.NewRegistrationClient(agent).Register(ctx, &deviceplugin.RegisterRequest{
		Version:      deviceplugin.Version,
		Endpoint:     "gadgets.sock",
		ResourceName: gadget,
	})
	return server, err
}

func (gadgets) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

func (gadgets) ListAndWatch(_ *deviceplugin.Empty,
	s grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	list := &deviceplugin.ListAndWatchResponse{}
	for i := range 8 {
		list.Devices = append(list.Devices, &deviceplugin.Device{ID: fmt.Sprint(i), Health: deviceplugin.Healthy})
	}
	if err := s.Send(list); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (gadgets) Allocate(context.Context, *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	return &deviceplugin.AllocateResponse{
		ContainerResponses: []*deviceplugin.ContainerAllocateResponse{{Envs: map[string]string{"GADGET": "1"}}},
	}, nil
}
