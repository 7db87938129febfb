"""The backend of torch.compile, which torch finds by the entry point `torch_dynamo_backends`."""
