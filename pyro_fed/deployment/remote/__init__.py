"""Clients elsewhere that a server asks by messages, whatever carries these: what Flower and files share.

remote_federation   what a client tells of its data, without values, and the server's federation made from that
order               what the server may ask, and the client's checks of it
site                a client's side: its rows, its state, and its answer to an order
clients             the server's side: the executor that makes orders and reads answers
questions           leave-one-out, influence and estimands of a result, by one more round
"""
